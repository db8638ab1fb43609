"""Values that PyIceberg reads or writes wrongly, fixed in each process that imports the module of their files."""
