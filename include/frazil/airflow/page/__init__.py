"""The operations page inside Airflow's UI."""
