// The runbook: follows the theme, and shows the entry that the address names.

import { followTheme } from "./airflow.js";

followTheme();
document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
