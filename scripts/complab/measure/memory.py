"""How much memory does the steady window need at its peak?"""

import re
from pathlib import Path

import torch


class PeakMemory:
    """Context manager; afterwards ``bytes`` holds the peak, or None with ``why`` it was not measured.

    CUDA: peak of the caching allocator. CPU: growth of the resident set over its size at entry, from
    the kernel's own high-water mark, where Linux lets the process clear that mark.
    """

    def __init__(self, device: str):
        self._cuda = device == "cuda"
        self.bytes: int | None = None
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
            self.bytes = max(0, _status("VmHWM") - self._start)


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)[1]) * 1024
