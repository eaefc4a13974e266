"""DistGraph on a meta-partitioned graph: its partitions, its data, what it is asked."""
