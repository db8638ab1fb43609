"""What each process of `tests.dags.in_airflow` has at its start: Airflow, its API's routes, and the API of tasks.

Importing the routes takes four seconds of CPU, and so does creating the API that tasks call in their own process.
"""

from __future__ import annotations

import airflow.api_fastapi.core_api.routes.public
import airflow.api_fastapi.core_api.routes.ui
import airflow.dag_processing.dagbag
import airflow.sdk.execution_time.task_runner
import airflow.serialization.serialized_objects  # noqa: F401
from airflow.sdk.execution_time.supervisor import in_process_api_server

in_process_api_server().app._cadwyn_initialize()
