"""DeepMind Control: every task of its suite, and Reach Duplo of its manipulation tasks."""
