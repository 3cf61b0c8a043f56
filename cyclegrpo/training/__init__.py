"""CycleGRPO on TRL: what one step draws (`draws`), how answers are scored (`scoring`), the loop (`trainer`), the run (`run`)."""
