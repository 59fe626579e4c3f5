"""IPv6 subnets and launch templates as EC2 tells them, which the Terraform provider compares with what it asked for."""
from moto.ec2.models.launch_templates import LaunchTemplateVersion
from moto.ec2.models.subnets import Subnet


def install():
    """Patch moto."""
    subnets()
    launch_templates()


def subnets():
    # moto nests an association's state twice, and cannot look for a subnet by its association.
    def associations(self):
        return [
            {"associationId": a["associationId"], "ipv6CidrBlock": a["ipv6CidrBlock"], "ipv6CidrBlockState": {"state": "associated"}}
            for a in self.ipv6_cidr_block_associations.values()
            if a["ipv6CidrBlockState"]["State"] == "associated"
        ]

    known = Subnet.get_filter_value

    def filter_value(self, filter_name, method_name=None):
        if filter_name == "ipv6-cidr-block-association.association-id":
            return list(self.ipv6_cidr_block_associations)
        return known(self, filter_name, method_name)

    Subnet.ipv6_cidr_block_association_set = property(associations)
    Subnet.get_filter_value = filter_value


def launch_templates():
    # moto takes the template's own tags for those of what it launches.
    create = LaunchTemplateVersion.__init__

    def init(self, template, number, data, description):
        tags = data.get("TagSpecifications")
        if tags:
            data["TagSpecifications"] = [t for t in tags if t.get("ResourceType") != "launch-template"]
        create(self, template, number, data, description)

    LaunchTemplateVersion.__init__ = init
