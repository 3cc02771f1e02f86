"""What is done to a whole stack's deltas before they are merged, one file each.

- `matrix(gram)`: a linear recombination of the inputs;
- `enhance(deltas, strengths)`: row tiles, and what gives back later what was taken out;
- `shared(factors)`: a basis that all deltas share;
- `cleaned(up, down)`: one delta by itself.
"""
