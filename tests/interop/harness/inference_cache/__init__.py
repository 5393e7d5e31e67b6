"""inference-cache's two programs, written again from its contract: a server (`server`) and a subscriber (`subscriber`).

Both do what the originals do, with their weaknesses: a test that passes with kvplane in the place of one shows that it
can be swapped alone, and a test that fails with the original in it shows what is gained.
"""
