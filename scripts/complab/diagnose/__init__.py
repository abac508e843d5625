"""A verdict on anyone's torch.compile call: isolated probes, levels judged in order, a cause tested."""
