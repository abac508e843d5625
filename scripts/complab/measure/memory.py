"""How much memory does the steady window need at its peak?"""

import re
from pathlib import Path

import torch


class PeakMemory:
    """Context manager; afterwards ``bytes`` holds the peak, or None with ``why`` it was not measured.

    CUDA: peak of the caching allocator, weights included. CPU: growth of the resident set over its size
    at entry, from the kernel's own high-water mark, where Linux lets the process clear that mark; a
    window that needs no page beyond those already there shows nothing. ``metric`` names which it is.
    """

    def __init__(self, device: str):
        self._cuda = device == "cuda"
        self.bytes: int | None = None
        self.metric = "peak_memory" if self._cuda else "peak_memory_growth"
        self.instrument = "CUDA caching allocator" if self._cuda else "growth of resident set (VmHWM)"
        self.why = ""

    def __enter__(self):
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            return self
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self._start = _status("VmRSS")
        except OSError as error:
            self.why = f"not measured: the kernel keeps this process's high-water mark ({error.strerror})"
        return self

    def __exit__(self, *_):
        if self._cuda:
            torch.cuda.synchronize()
            self.bytes = torch.cuda.max_memory_allocated()
        elif not self.why:
            growth = _status("VmHWM") - self._start
            if growth > 0:
                self.bytes = growth
            else:
                self.why = "not measured: the resident set did not grow"


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)[1]) * 1024
