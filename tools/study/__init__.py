"""The study of routing policies on simulated fleets: see docs/predicted-time-study.md."""
