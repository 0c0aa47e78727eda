"""`manyview acceptance`: test manyview on a device and write a report to send back."""

import warnings
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, arg

from manyview.cli.arguments import EXIT_FAILED, report_error
from manyview.config.groups import ComputeConfig
from manyview.report.acceptance import write_report
from manyview.training.acceptance import Acceptance, run_sections
from manyview.training.compute import resolve_device
from manyview.utils.resources import keep_freed_memory
from manyview.utils.text import print_line


def acceptance(
    *,
    device: Annotated[str, arg(metavar="auto|cpu|cuda", help="Device to test.")] = "auto",
    out: Annotated[Path, arg(metavar="FILE", help="Report as JSON; the same as Markdown is written beside it.")] = Path(
        "acceptance.json"
    ),
    quick: Annotated[
        bool, FlagCreatePairsOff, arg(help="Shorten all sections to seconds; sizes are then not the paper's.")
    ] = False,
) -> int:
    """Test speed, precision, resume and learning on a device, and write a report.

    It takes about fifteen minutes.
    The exit status is 1 if a section failed; the others run all the same.
    """
    try:
        if out.suffix == ".md":
            raise ValueError(f"--out: expected a .json file, beside which the Markdown is written, got {out}")
        kit = Acceptance(device=resolve_device(ComputeConfig(device=device)), quick=quick, log=print_line)
        keep_freed_memory()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of compilers and drivers; errors are in the report
            for results in run_sections(kit):
                write_report(out, kit, results)  # after every section: a crash of the driver leaves a report
    except (ValueError, OSError) as error:
        return report_error(error)
    failed = [result.name for result in results if result.status == "failed"]
    print_line(f"written to {out} and {out.with_suffix('.md')}; failed: {', '.join(failed) or 'none'}")
    return EXIT_FAILED if failed else 0
