"""CycleGRPO on TRL: what is asked (`draws`), got (`answers`) and scored (`scoring`), the loop (`trainer`), `run`."""
