"""Shows a snapshot: a page for a browser, plots, and a trace for Perfetto.  Importing accelrt does not
import it; the command line does.  Snapshots are torch's dicts (torch.cuda.memory._snapshot) or accelrt's,
which say more.

snapshot_columns  a snapshot as columns: events, the lifetimes of allocations, stacks, names
memory_ranges     which addresses were mapped at which moment, from the last moment backwards
html_page         one HTML file with all that the page needs in it
difference        what is live in a snapshot and was not in an earlier one
plots             timeline, segments and flame graph as PNG or SVG, by Matplotlib
chrome_trace      Chrome's trace format, which Perfetto opens
assets/           the page: its text, its style, and its script in parts, which html_page joins
"""

from __future__ import annotations
