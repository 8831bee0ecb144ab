"""The style sheet of the page, and the hash by which its policy names it."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#5a6270;--line:#d5d9e0;--paper:#fff;--curve:#0b5cad;--bad:#b42318}
@media(prefers-color-scheme:dark){:root{--ink:#e4e7eb;--dim:#9aa4b2;--line:#363d47;--paper:#14171b}}
@media(prefers-color-scheme:dark){:root{--curve:#6cb0f5;--bad:#ff7b72}}
body{max-width:1500px;margin:0 auto;padding:16px;background:var(--paper);color:var(--ink)}
body{font:14px/1.45 system-ui,sans-serif}.columns{display:grid;gap:0 48px;align-items:start}
.columns{grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr))}.columns>*{min-width:0}
h1{font-size:22px;margin:0;overflow-wrap:anywhere}h2{font-size:16px;margin:28px 0 8px}
p{overflow-wrap:anywhere}pre{white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.45 ui-monospace,monospace}
.dim{color:var(--dim)}.bad{color:var(--bad)}
table{border-collapse:collapse}td,th{padding:3px 16px 3px 0;border-bottom:1px solid var(--line);text-align:left;
vertical-align:top;overflow-wrap:anywhere}th{font-weight:500}td.number{text-align:right;font-variant-numeric:tabular-nums}
summary{cursor:pointer;font-weight:600;margin:16px 0 4px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(400px,1fr));gap:16px}
figure{margin:0;border:1px solid var(--line);border-radius:6px;padding:8px;min-width:0}
figcaption{overflow-wrap:anywhere}svg{width:100%;height:auto;display:block}
.curve{fill:none;stroke:var(--curve);stroke-width:1.3;stroke-linejoin:round}.point{fill:var(--curve)}
.grid{stroke:var(--line);stroke-width:.6}.tick{fill:var(--dim);font-size:10px}.end{text-anchor:end}
.media{display:grid;grid-template-columns:repeat(auto-fill,minmax(240px,1fr));gap:12px;align-items:start}
.media .wide{grid-column:1/-1}.scroll{overflow:auto;max-height:420px}
.key h3{margin:14px 0 6px;font-size:14px;overflow-wrap:anywhere}
.media img,.media video{max-width:100%;max-height:480px;display:block;margin:0 auto;background:#fff}
.media img{min-width:min(160px,100%)}.media td img{min-width:0;max-width:160px;max-height:64px;margin:0}
audio{width:100%}.media p{margin:4px 0}
.media pre{margin:4px 0;max-height:420px;overflow:auto}.media td,.media th{white-space:pre-wrap}
td,th,h1,h3,figcaption,pre b{unicode-bidi:isolate}.bars{fill:var(--curve)}
.console{max-height:70vh;overflow:auto;display:flex;flex-direction:column-reverse}
.console{border:1px solid var(--line);border-radius:6px;padding:0 8px}
.console i{color:var(--dim);font-style:normal}.console b{color:var(--bad);font-weight:400}
.odd{fill:var(--bad);font-size:14px;text-anchor:middle}.gap{fill:var(--bad);opacity:.18}
"""


def policy() -> str:
    """Return the policy of the page: no script, this style sheet alone, pictures and sounds of the file itself."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; media-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
