"""Options that pytest reads at every start of every project: nothing here imports anything heavy."""
