"""Pure functions from DataFrame to DataFrame: bronze splits events, silver folds them to jobs, gold counts."""
