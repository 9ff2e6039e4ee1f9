"""The command line: accelrt info, accelrt replay, accelrt demo.  Importing accelrt does not import it."""
