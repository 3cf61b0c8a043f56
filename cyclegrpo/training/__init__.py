"""CycleGRPO on TRL: what a step draws (`draws`), scores (`scoring`), the loop (`trainer`), the run (`run`)."""
