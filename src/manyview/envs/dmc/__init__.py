"""DeepMind Control: all tasks of its suite, and Reach Duplo of its manipulation tasks."""
