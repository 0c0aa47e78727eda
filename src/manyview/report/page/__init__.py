"""Report on runs as one self-contained HTML page."""

from manyview.report.page.document import MAX_PAGE_BYTES, build_page, write_page

__all__ = ["MAX_PAGE_BYTES", "build_page", "write_page"]
