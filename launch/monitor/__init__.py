"""`milepost monitor`: a run on one screen. Pure but for two files: `feed` reads, `screen` draws."""
