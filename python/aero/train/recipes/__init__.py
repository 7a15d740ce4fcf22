"""The settings of a training: the shipped recipes and what else a recipe may say."""
