"""The pages of measurements, as `make bench-site` builds them: they load nothing from elsewhere."""
