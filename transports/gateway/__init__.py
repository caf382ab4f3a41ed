"""Who is let in, and how much: keys, guards, limits and admission, in front of the scheduler, apart from fairness."""
