"""Push runs to the Hugging Face hub and pull them from it (extra `hub`).

A repository is untrusted. Its files are listed first and checked by name and size; only those of a shared run are
downloaded, each up to its listed size, into a temporary folder. They are checked there as those of any foreign run.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from manyview.deploy.model_card import default_pull_folder
from manyview.deploy.shared_files import CURVE_FILE, EXPORT_DIR, MAX_FILES, VIDEO_FILE, check_complete, is_allowed
from manyview.deploy.shared_run import list_evaluations, replace_shared_run, write_shared_run
from manyview.runtime.policy_file import read_policy_file
from manyview.training import RunDir, checkpoint
from manyview.utils.atomic_io import make_directory, write_new_file
from manyview.utils.optional_imports import import_optional
from manyview.utils.text import format_bytes, sanitize_text

REPOSITORY_PATTERN = re.compile(r"[A-Za-z0-9][\w-]*(\.[\w-]+)*/[A-Za-z0-9][\w-]*(\.[\w-]+)*", re.ASCII)
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")
IGNORED_FILES = {".gitattributes"}
"""Files that the hub itself adds to every repository."""
REPLACED_FILES = ["checkpoints/*", f"{EXPORT_DIR}/*", CURVE_FILE, VIDEO_FILE]
"""Files of an earlier push that a new one removes if it does not have them."""
TIMEOUT_S = 30.0
Log = Callable[[str], None]


def push_run(
    run: Path,
    repository: str,
    *,
    private: bool = False,
    choice: str = "last",
    own_task: str | None = None,
    log: Log = lambda _: None,
) -> str:
    """Write the shared run of a run directory, upload it as one commit, and return its address.

    Args:
        run: Run directory, or a folder of `manyview card`.
        repository: `user/name`; it is created if it does not exist.
        private: Let only you see the repository.
        choice: Checkpoint, as for `manyview.load`.
        own_task: As for `write_shared_run`.
        log: Receives progress and the parts that are left out.

    Raises:
        ValueError: The run or the name is invalid, or `private` is asked for a public repository.
        OSError: The hub cannot be reached or rejects the upload.

    """
    check_repository(repository)
    api = _connect()
    with TemporaryDirectory() as parent, _convert_errors(repository):
        folder = Path(parent) / "run"
        write_shared_run(run, folder, choice=choice, repository=repository, own_task=own_task, log=log)
        files = [path for path in folder.rglob("*") if path.is_file()]
        api.create_repo(repository, private=private or None, exist_ok=True)
        # An existing repository keeps its visibility, whatever `create_repo` is asked for.
        if private and not api.repo_info(repository).private:
            raise ValueError(
                f"{repository} is public: expected a private repository. Change it on the hub, or omit --private"
            )
        log(f"uploading {len(files)} files, {format_bytes(sum(path.stat().st_size for path in files))}")
        config = RunDir(folder).read_config()
        message = sanitize_text(f"{config.method} on {config.task}, seed {config.seed}")
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=message, delete_patterns=REPLACED_FILES
        )
        return str(commit.repo_url)


def pull_run(
    repository: str, folder: Path | None = None, *, revision: str | None = None, log: Log = lambda _: None
) -> Path:
    """Download a shared run and return its folder, which `manyview.load` and `manyview evaluate` accept.

    Args:
        repository: `user/name` on the hub.
        folder: New folder, or an earlier shared run to replace; None is `runs/hub/user/name`.
        revision: Branch, tag or commit; None is the default branch.
        log: Receives progress and the files that are left out.

    Raises:
        ValueError: The repository is not a valid shared run.
        FileExistsError: The folder exists and holds something else.
        OSError: The hub cannot be reached, or has no such repository or revision.

    """
    check_repository(repository)
    api = _connect()
    with replace_shared_run(folder or Path(default_pull_folder(repository))) as temporary, _convert_errors(repository):
        # By commit: the branch may move between listing and download.
        commit = api.repo_info(repository, revision=revision).sha
        if not isinstance(commit, str) or not COMMIT_PATTERN.fullmatch(commit):
            raise ValueError(f"invalid commit: expected 40 hexadecimal digits, got {sanitize_text(commit)!r}")
        sizes = _list_files(api, repository, commit, log)
        log(f"downloading {len(sizes)} files, {format_bytes(sum(sizes.values()))}, of commit {commit[:12]}")
        for name, size in sizes.items():
            make_directory((temporary / name).parent)
            write_new_file(temporary / name, _download(api, repository, commit, name, size))
        check_shared_run(temporary)
    return folder or Path(default_pull_folder(repository))


def check_repository(repository: str) -> None:
    """Raise `ValueError` unless a name is `user/name`; it becomes a path."""
    if not REPOSITORY_PATTERN.fullmatch(repository) or len(repository) > 96:
        raise ValueError(f"invalid repository: expected user/name, got {sanitize_text(repository)!r}")


def check_shared_run(folder: Path) -> None:
    """Check all files of a foreign shared run; `ValueError` or `OSError` names the first invalid one."""
    run_dir = RunDir(folder)
    run_dir.check_no_links()
    run_dir.read_config()
    if not run_dir.is_shared:
        raise ValueError("not a shared run: expected `shared` in manifest.json, as `manyview card` writes it")
    checkpoint.load_newest_checkpoint(run_dir.checkpoints_dir)
    list_evaluations(run_dir)
    if (folder / EXPORT_DIR).exists():
        read_policy_file(folder / EXPORT_DIR)


def _connect() -> Any:
    hub, utils = _import_hub()
    utils.disable_progress_bars()  # a progress bar for each of a dozen small files
    return hub.HfApi(library_name="manyview")


def _import_hub() -> tuple[Any, Any]:
    """Return the package and its public helpers, which it does not import itself."""
    return import_optional("huggingface_hub", extra="hub"), import_optional("huggingface_hub.utils", extra="hub")


def _list_files(api: Any, repository: str, commit: str, log: Log) -> dict[str, int]:
    """Return the sizes of the files to download by name; `ValueError` for an incomplete or hostile repository."""
    entries = list(islice(api.list_repo_tree(repository, recursive=True, revision=commit), MAX_FILES + 1))
    if len(entries) > MAX_FILES:
        raise ValueError(f"too many files: expected at most {MAX_FILES}")
    # Only files have a size; folders follow from the names of their files.
    files = {entry.path: entry.size for entry in entries if hasattr(entry, "size")}
    sizes = {name: size for name, size in files.items() if is_allowed(name, size)}
    if others := sorted(files.keys() - sizes.keys() - IGNORED_FILES):
        log(f"left out, not files of a shared run: {', '.join(others)}")
    check_complete(set(sizes))
    return sizes


def _download(api: Any, repository: str, commit: str, name: str, size: int) -> Iterator[bytes]:
    """Yield the content of a file; `ValueError` if it has another size than listed."""
    hub, utils = _import_hub()
    url = hub.hf_hub_url(repository, name, revision=commit, endpoint=api.endpoint)
    headers = {**utils.build_hf_headers(library_name="manyview"), "Accept-Encoding": "identity"}
    received = 0
    session = utils.get_session()
    with session.stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S) as response:
        utils.hf_raise_for_status(response)
        for block in response.iter_bytes():
            received += len(block)
            if received > size:
                break
            yield block
    if received != size:
        got = "more" if received > size else f"{received:,}"
        raise ValueError(f"{name} has another size than listed: expected {size:,} bytes, got {got}")


@contextmanager
def _convert_errors(repository: str) -> Iterator[None]:
    """Raise `OSError` with one line for errors of the hub, and `ValueError` for an unreadable answer."""
    errors = import_optional("huggingface_hub.errors", extra="hub")
    try:
        yield
    except errors.RepositoryNotFoundError as error:
        raise OSError(
            f"{repository} is not on the hub, or not for you ({error.response.status_code}): expected user/name of a "
            "repository that you can read. Log in with `hf auth login` if it is private"
        ) from None
    except errors.RevisionNotFoundError:
        raise OSError(f"{repository} has no such revision: expected a branch, tag or commit") from None
    except (errors.HTTPError, ConnectionError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise OSError(f"the hub failed for {repository}: {sanitize_text(reason[0])}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the hub gave an invalid answer for {repository}: {sanitize_text(repr(error))}") from None
