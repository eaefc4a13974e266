"""A directory for PYTHONPATH, by which DGL_HETA_CONFIG enables dgl-heta without a launcher.

Programs with a launcher of their own start processes whose command nobody can edit, but which get
the environment. Python runs `sitecustomize` from PYTHONPATH when it starts; ours waits for the
import of dgl. Nothing is put among what is installed, and who takes the directory off PYTHONPATH,
or DGL_HETA_CONFIG away, has plain Python again.

    export DGL_HETA_CONFIG=$PWD/heta.toml
    export PYTHONPATH=$(python -m dgl_heta.launch.site)${PYTHONPATH:+:$PYTHONPATH}
"""
