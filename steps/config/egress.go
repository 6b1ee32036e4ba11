package config

import "fabrique/steps/egress"

// Egress is what builds may reach outside; the gateway enforces it.
type Egress = egress.Rules

func defaultEgress() Egress { return Egress{MaxTunnels: egress.DefaultMaxTunnels} }

func (c *Config) checkEgress(d *decoder) {
	c.Egress.Check(func(field string, err error) { d.problem("egress."+field, "%w", err) })
}
