"""What is answered, as types: one definition for the code that makes it, and for the OpenAPI file that tells of it.

The annotations are no strings here: a TypedDict made of strings does not know which of its members may be left out.
"""
