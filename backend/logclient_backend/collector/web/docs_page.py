"""`/docs`: the interface on one page, made of its own description. No script, nothing from elsewhere: it works offline.

FastAPI's own page loads a viewer from a host on the internet, which a cluster often cannot reach, and which would run
that host's script on the page of a collector.
"""

from __future__ import annotations

from html import escape
from typing import Any

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "body{color:#222;background:#fff}"
    "code{font:13px ui-monospace,monospace;background:#f3f3f3;padding:.1em .3em;border-radius:3px}"
    "h2{margin-top:2.5rem;font-size:1.05rem;border-top:1px solid #ddd;padding-top:1rem}"
    "table{border-collapse:collapse;width:100%}td{padding:.25rem .8rem .25rem 0;vertical-align:top}"
    "td:first-child{white-space:nowrap}.dim{color:#666}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}code{background:#2a2a2a}"
    "h2{border-color:#333}.dim{color:#999}}"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def page(described: dict[str, Any]) -> str:
    """The page for an OpenAPI description."""
    head = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(described['info']['title'])}</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style>"
        f"<h1>{escape(described['info']['title'])}</h1><p>{_prose(described['info'].get('description', ''))}"
        "<p>For programs: <a href=openapi.json>openapi.json</a>."
    )
    return head + "".join(
        _operation(path, verb, found)
        for path, verbs in described["paths"].items()
        for verb, found in verbs.items()
    )


def _operation(path: str, verb: str, found: dict[str, Any]) -> str:
    rows = "".join(map(_parameter, found.get("parameters", ())))
    return f"<h2><code>{verb.upper()} {escape(path)}</code></h2><p>{_prose(found.get('description', ''))}" + (
        f"<table>{rows}</table>" if rows else ""
    )


def _parameter(found: dict[str, Any]) -> str:
    schema = found["schema"]
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    inner = kinds[0].get("items", kinds[0]) if kinds else {}
    notes = [str(inner.get("type", "")) + (", repeatable" if kinds and "items" in kinds[0] else "")]
    if "enum" in inner:
        notes.append("one of " + ", ".join(map(str, inner["enum"])))
    if "default" in schema and schema["default"] not in ("", [], None):
        notes.append(f"default {schema['default']}")
    if "maximum" in inner:
        notes.append(f"at most {inner['maximum']:,}")
    if found.get("required"):
        notes.append("required")
    text = escape(found.get("description", ""))
    return (
        f"<tr><td><code>{escape(found['name'])}</code><td class=dim>{escape('; '.join(notes))}<td>{text}</tr>"
    )


def _prose(text: str) -> str:
    """Backquotes as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))
