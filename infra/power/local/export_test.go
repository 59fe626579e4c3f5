package local

// PID returns the id of the host's process, or 0 if it has none.
func (d *Driver) PID(host string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.children[host]; c != nil {
		return c.cmd.Process.Pid
	}
	return 0
}
