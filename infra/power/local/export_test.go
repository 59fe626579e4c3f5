package local

// PID is the process id of the host's process, 0 for none.
func (d *Driver) PID(host string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.children[host]; c != nil {
		return c.cmd.Process.Pid
	}
	return 0
}
