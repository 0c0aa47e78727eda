"""Style sheet of a report, and the policy that keeps everything else out of the page."""

from base64 import b64encode
from hashlib import sha256

LIGHT_COLORS = ("#0072B2", "#C44E00", "#007A5A", "#A8477F", "#8A6100", "#2A7FA8")
DARK_COLORS = ("#56B4E9", "#F08A3C", "#2FC08F", "#E08DBB", "#E6B422", "#9CC9E3")
"""Okabe and Ito's hues, darkened or lightened to a contrast of 4 and more on the background."""
DASHES = ("none", "7 4", "2 3", "9 3 2 3", "12 3", "4 2")


def _format_colors(colors: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:{color};" for number, color in enumerate(colors))


STYLE = (
    f":root{{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--rule:#d0d7de;--ground:#fff;--panel:#f6f8fa;"
    f"{_format_colors(LIGHT_COLORS)}}}"
    f"@media(prefers-color-scheme:dark){{:root{{--ink:#e6edf3;--soft:#9aa4af;--rule:#363d46;--ground:#0f1318;"
    f"--panel:#181d24;{_format_colors(DARK_COLORS)}}}}}"
    """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
header,main,footer{max-width:70rem;margin:0 auto;padding:0 1rem}
h1{font-size:1.7rem;margin:1.5rem 0 .25rem}
h2{font-size:1.3rem;margin:2.5rem 0 .5rem;padding-top:.5rem;border-top:1px solid var(--rule)}
h3{font-size:1.05rem;margin:1.5rem 0 .25rem;overflow-wrap:anywhere}
h4{font-size:.95rem;margin:1rem 0 .25rem;overflow-wrap:anywhere}
p,li,figcaption,summary{overflow-wrap:anywhere}
p{margin:.4rem 0;max-width:46rem}
a{color:var(--c0)}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;list-style:none;margin:.75rem 0}
.lead{font-size:1.1rem}
.soft,figcaption,footer{color:var(--soft);font-size:.875rem}
.scroll{overflow-x:auto;margin:.3rem 0 1rem;border:1px solid var(--rule);border-radius:6px}
table{border-collapse:collapse;width:100%;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .6rem;vertical-align:top}
tbody tr{border-top:1px solid var(--rule)}
td{white-space:nowrap}
td .wrap{white-space:normal;min-width:14rem;overflow-wrap:anywhere}
tbody th{font-weight:600;min-width:8rem;overflow-wrap:break-word}
thead th{background:var(--panel)}
.bad{font-weight:700}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem}
.videos{grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr))}
figure{margin:.5rem 0;min-width:0}
.grid figure{max-width:34rem}
svg.chart{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:13px;font-family:inherit}
svg .end{text-anchor:end}
svg .middle{text-anchor:middle}
svg .strong{fill:var(--ink);font-weight:700}
svg path{fill:none}
svg .rule{stroke:var(--rule);stroke-width:1}
svg .tick{stroke:var(--soft);stroke-width:1}
svg .line{stroke-width:2.2;stroke-linejoin:round}
svg .thin{stroke-width:1;opacity:.45}
svg .band{opacity:.18;stroke:none}
svg path.mark{stroke:var(--ink);stroke-width:1.2}
svg circle.mark{fill:var(--ink)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;margin:.25rem 0;font-size:.875rem}
.legend svg{width:36px;height:12px;margin-right:.4rem}
.legend li{overflow-wrap:anywhere;min-width:0}
video{width:100%;max-height:24rem;background:var(--panel);border:1px solid var(--rule);border-radius:6px}
details{margin:.5rem 0}
summary{cursor:pointer}
pre{margin:.5rem 0;padding:.6rem;overflow-x:auto;background:var(--panel);border-radius:6px;font-size:.8125rem}
footer{padding:1rem;margin-top:2rem;border-top:1px solid var(--rule)}
@media print{nav{display:none}figure,tr{break-inside:avoid}}
"""
    + "".join(f".s{number}{{stroke:var(--c{number})}}" for number in range(len(LIGHT_COLORS)))
    + "".join(f"svg .f{number}{{fill:var(--c{number})}}" for number in range(len(LIGHT_COLORS)))
    + "".join(f".d{number}{{stroke-dasharray:{dashes}}}" for number, dashes in enumerate(DASHES))
)

_STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
CONTENT_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; media-src data:; base-uri 'none'; form-action 'none'"
)
"""Policy of the page: this style sheet and embedded videos; no scripts, no connections, no other page in it."""
