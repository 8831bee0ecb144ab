"""Host and device metrics of one node, as records of a stream of the agent's own.

=======================  =======================================================================
`metrics.py`             `SystemMetrics`: a sample each so many seconds, written to shared memory
`host.py`                the node: CPU, memory, disks, network; what its cgroup allows
`programs.py`            the processes of each rank, and of the agent
`devices.py`             GPUs, through NVML
`repeated_question.py`   a question asked again and again, in a child that is replaced when it hangs
=======================  =======================================================================

An observer calls `SystemMetrics.look` again and again; it never waits. Names and units: docs/system-metrics.md.
Nothing is read but tmpfs, /proc and /sys; drivers and disks are asked by children.
"""
