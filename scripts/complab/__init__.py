"""complab: which assumption of a torch.compile contract stopped holding?"""

__version__ = "0.1.0"
