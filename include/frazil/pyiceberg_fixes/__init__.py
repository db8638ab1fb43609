"""Patches values that PyIceberg reads or writes wrongly: importing `data_files` or `manifests` patches the process."""
