"""What must be compiled so that Inductor builds every precompiled header the experiments use?"""

import torch

from complab.measure import dynamo


def timed(bench) -> None:
    """Compile one vectorised kernel on the bench's device; its only use is the header it leaves."""
    compiled = torch.compile(lambda x: torch.sin(x) * 2)
    with torch.no_grad():
        compiled(torch.ones(64, 64, device=bench.device))
    probed, unprobed = dynamo.vector_isa()
    bench.record("vector_isa_known", probed == unprobed, "1", detail=f"{probed} probed, {unprobed} unprobed")
