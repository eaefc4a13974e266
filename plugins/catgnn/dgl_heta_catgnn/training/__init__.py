"""Training on homogeneous parts with model averaging (CATGNN, §3.3).

Parts of any partitioner (`parts`) are trained in turn by workers (`turns`) with batches
(`batches`) of models (`models`), and judged on the whole graph (`evaluation`).
"""
