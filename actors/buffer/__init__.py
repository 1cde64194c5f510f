"""The buffer actor: complete groups, their ages, their journal."""
