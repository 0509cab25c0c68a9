"""Worker shapes: from MP degrees that a plan wants to engines that run so on the hosts' GPUs."""
