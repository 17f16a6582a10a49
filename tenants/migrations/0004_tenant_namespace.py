import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0003_tenant_max_priority'),
    ]

    operations = [
        migrations.AddField(
            model_name='tenant',
            name='namespace',
            field=models.CharField(blank=True, max_length=63, null=True, unique=True, validators=[django.core.validators.RegexValidator('\\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\Z', 'Use lower-case letters, digits and hyphens, at most 63, starting and ending with a letter or digit.')]),
        ),
    ]
