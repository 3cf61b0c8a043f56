"""CycleGRPO on TRL: what a step draws (`draws`), how answers score (`scoring`), the loop (`trainer`), the run (`run`)."""
