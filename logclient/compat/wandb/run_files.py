"""Files and artifacts of a run, W&B's way: nothing is kept, and what a program does with them goes on working.

Runs in the training process. `run.dir` is a folder for the program's own files, which nothing looks at.
"""

from __future__ import annotations

import os

from logclient.compat import artifacts
from logclient.compat import stand_ins as inert
from logclient.compat.stand_ins import Inert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class RunFiles:
    """Methods of a run that handle files."""

    logclient_run: Any
    _other_dir = ""

    @property
    def dir(self) -> str:
        """A folder for files of the user's, beside the run folder; nothing looks at it."""
        made = self.logclient_run
        runs = os.path.abspath(made.dir or "logclient-runs")
        folder = os.path.join(os.path.dirname(runs), "wandb-files", made.id or "none")
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            import tempfile

            folder = self._other_dir = self._other_dir or tempfile.mkdtemp(prefix="wandb-files-")
            inert.warn(made, f"wandb.run.dir is {folder}, since there is no other place ({error.strerror})")
        return folder

    def save(self, *args: Any, **kwargs: Any) -> list[str]:
        """Files are not kept: said once."""
        inert.warn(self.logclient_run, "wandb.save: files are not kept, the call does nothing")
        return []

    def restore(self, name: Any = "", *args: Any, **kwargs: Any) -> Any:
        """The file of this name in `run.dir` or the working directory, open for reading; else an empty one."""
        given = os.fspath(name)
        for path in (os.path.join(self.dir, given), given):
            if os.path.isfile(path):
                return open(path)
        inert.warn(
            self.logclient_run, f"wandb.restore({given!r}): there is no such file; an empty one is given"
        )
        path = os.path.join(inert.scratch("restored"), os.path.basename(given) or "none")
        return open(path, "a+")

    def log_code(self, *args: Any, **kwargs: Any) -> None:
        """Files are not kept: said once."""
        inert.warn(self.logclient_run, "wandb.run.log_code: files are not kept, the call does nothing")

    def log_artifact(
        self, artifact_or_path: Any, name: Any = None, type: Any = None, aliases: Any = None, **others: Any
    ) -> Any:
        """Keep its names for `use_artifact` in this process; files are not kept: said once."""
        inert.warn(self.logclient_run, "wandb.log_artifact: files are not kept beyond this process")
        return artifacts.log(artifact_or_path, name, type, aliases)

    upsert_artifact = finish_artifact = log_artifact

    def use_artifact(self, artifact_or_name: Any, type: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return what this process has logged under this name; else an artifact that holds nothing."""
        return artifacts.use(artifact_or_name, type)

    def log_model(self, path: Any, name: Any = None, aliases: Any = None) -> None:
        """Log a model as `log_artifact` does."""
        self.log_artifact(path, name or os.path.basename(os.fspath(path)), "model", aliases)

    def use_model(self, name: Any = "") -> str:
        """Its file, or its folder where it holds several or none."""
        artifact = artifacts.use(name)
        found = artifact.files() if isinstance(artifact, artifacts.Artifact) else []
        return found[0].download() if len(found) == 1 else artifacts.Artifact.download(artifact)

    def link_artifact(self, *args: Any, **kwargs: Any) -> Inert:
        """There is no registry: said once."""
        inert.warn(self.logclient_run, "wandb.run.link_artifact: there is no registry, the call does nothing")
        return Inert("wandb.run.link_artifact()")

    link_model = link_artifact
