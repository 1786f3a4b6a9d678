"""What the demo and the benchmarks share: workloads, the systems compared, launching, reports."""
