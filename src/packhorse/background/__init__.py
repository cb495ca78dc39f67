"""What every worker does beside running stages: schedules, lost leases, retention, webhooks, alerts, statistics."""
