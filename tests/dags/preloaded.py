"""What each process of `tests.dags.in_airflow` has at its start: Airflow, and its task execution API ready to answer.

Creating this API's versioned routes takes four seconds of CPU. Tasks that run without a scheduler call it in their own
process.
"""

from __future__ import annotations

import airflow.dag_processing.dagbag
import airflow.sdk.execution_time.task_runner
import airflow.serialization.serialized_objects  # noqa: F401
from airflow.sdk.execution_time.supervisor import in_process_api_server

in_process_api_server().app._cadwyn_initialize()
