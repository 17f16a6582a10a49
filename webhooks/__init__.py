"""What happens, told to other programs: webhooks by the Standard Webhooks specification, or as
messages for Slack."""
