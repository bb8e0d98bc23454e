"""Writes gsm8k.parquet, with pyarrow 26: seven rows in three row groups, columns of several kinds.

Run in this folder: python make_gsm8k_parquet.py
"""

import pyarrow as pa
import pyarrow.parquet as pq

rows = [
    {"id": i, "question": f"What is {i} + {i}? 🙂", "answer": f"Twice {i}.\n#### {2 * i}", "tags": ["sum", str(i)], "level": i / 2}
    for i in range(7)
]
rows[3]["tags"] = None
pq.write_table(pa.Table.from_pylist(rows), "gsm8k.parquet", row_group_size=3, compression="snappy")
