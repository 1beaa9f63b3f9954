"""Protection of the replies: clipping, differential privacy, and a secure sum with its masks. All are client mods."""
