"""SimGrid platform XML."""
